"""Kernels for GPUs, each beside its torch reference one folder up, which chooses between them.

Only modules of this folder import ``triton``, and only the references import these modules, where
they are used: nothing here is needed on a machine without a GPU.
"""
