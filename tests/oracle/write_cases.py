"""Writes random cases and what torch makes of them, for the C++ tests beside this file.

    write_cases.py FOLDER [--seed N]

Each file FOLDER/KIND.pt is a list of dicts of plain values and tensors. A block mask is written as a recipe
(mask_recipes.py) that both sides can build, with the tensors that torch made of it.
"""

import argparse
import pathlib
import random
import warnings

import torch

import attention_cases
import microbatch_cases

SEED = 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*flex_attention.*")
    warnings.filterwarnings("ignore", message="(?s).*(NumPy|non-tuple sequence).*")
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__}, seed {options.seed}")
    kinds = {
        "split": microbatch_cases.split_cases,
        "merge": microbatch_cases.merge_cases,
        "block_mask": attention_cases.block_mask_cases,
        "attention": attention_cases.attention_cases,
    }
    for kind, make in kinds.items():
        rng = random.Random(f"{options.seed} {kind}")
        torch.manual_seed(options.seed)
        cases = list(make(rng))
        torch.save({"cases": cases}, options.folder / f"{kind}.pt")
        print(f"{kind}: {len(cases)} cases")


if __name__ == "__main__":
    main()
