"""PyTorch's split and merge of the tree that microbatch.cpp uses: SHAPE as ROWSxCOLUMNS, one case each."""

import sys

import torch
from torch.distributed.pipelining.microbatch import TensorChunkSpec, merge_chunks, split_args_kwargs_into_chunks

import pytorch_cases

CHUNKS = 16


def tree(leaves):
    return {"ids": leaves[0], "hidden": [leaves[1], leaves[2]], "memory": (leaves[3], {"k": leaves[4], "v": leaves[5]}),
            "mask": leaves[6], "weight": leaves[7]}


def case(shape):
    batch = tree([torch.randn(*shape) for _ in range(8)])
    spec = tree([TensorChunkSpec(0)] * 8)

    def work():
        args, _ = split_args_kwargs_into_chunks((batch,), None, CHUNKS, (spec,))
        merge_chunks([arg[0] for arg in args], spec)

    return work


def main():
    torch.set_num_threads(int(sys.argv[1]))
    shapes = sys.argv[2:]
    pytorch_cases.serve({shape: case([int(n) for n in shape.split("x")]) for shape in shapes})


if __name__ == "__main__":
    main()
