# SPDX-License-Identifier: BSD-3-Clause
"""Other libraries, to race beside ours. One file a library, found by its name. Each defines

    unavailable()        why it cannot run here, or None
    primitive(wanted)    Peers for a Primitive; `build` gives a function without arguments
    linear(layer)        Peers for a Layer; `build` gives x -> a function without arguments
    model(encoder)       Peers for an Encoder; `build` gives a model

of which the last three may be missing.
"""
