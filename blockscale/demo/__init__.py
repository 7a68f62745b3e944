"""The demonstration: a real model in many formats, measured."""
