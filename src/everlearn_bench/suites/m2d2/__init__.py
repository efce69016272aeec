"""The suite `m2d2`: many small domains in a taxonomy of two levels, for the study of continual pre-training.

M2D2's own tarballs and folders, any corpus in the same layout, or a built-in substitute; orders by similarity or
random.
"""
