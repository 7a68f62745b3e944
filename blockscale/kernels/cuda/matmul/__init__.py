# SPDX-License-Identifier: BSD-3-Clause
"""Products of x [rows, k] with a quantized weight [n, k]: one file for each way to compute them.

The ways: few, fused, tile, dense, blocks and codes; `choice` says which runs. What they share:
`reading` (how a weight is decoded), `ptx` and `ptx_pairs` (the programs for that), `weight`,
`input` and `order` (the two operands), `call`, and `finish` (from sums to the result).

Glossary
--------
output      a row of the weight, and the column of the result that it makes
word        32 bits of a row's packed codes, an int32
plane       the i-th codes of all words of the weight, or the elements of x that these meet
block       codes of a row that share a scale; in hopper/ also the words of those
tile        rows × outputs of the result, which one program computes; also what it reads for them
k, split-K  the dimension that is summed over; dividing it among programs, which leave partial sums
part        of x: one of the bfloat16 numbers that its elements are split into, and the rows of x
            that these make; of a sum: a partial sum
step        what a program takes along k in one turn of its loop; `unroll` of them may be one piece
stage       memory for one step's operands; a ring of stages is filled ahead of the products
turn        what one product of the tensor cores takes along k, 32 to 128 codes, decoded at once
half        one of a step's two turns of 64 codes
slot        four words, one for each of the four threads that share a row of the tensor core's
            operand
share       rows of a tile that are multiplied while another share's sums meet their scales
group       warps that multiply; two groups may have half of a tile's outputs each
fold        to multiply codes by their scales before the product; what cannot be folded into
            bfloat16 codes meets the sums
factor      what sums of an output, or of a row of x, are multiplied by at the end
lift        a power of two that values are too small by after decoding, made up for elsewhere
pair        two codes of one word, 16 bits apart, decoded in one register
tail        the tiles of the last wave, which do not fill the GPU
entry       a way and its settings as tables.py keeps them: its name, then seven numbers
"""
