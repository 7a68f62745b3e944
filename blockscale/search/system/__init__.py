"""One object with verbs for everything: thin calls to the rest, whose numbers are measured."""
