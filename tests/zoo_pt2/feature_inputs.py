"""Inputs and dynamic shapes that several feature graphs share."""

import torch

from entry import BATCH, LENGTH

WIDTH = 8
SHAPES = [(3, 6), (2, 9), (5, 4)]
ROWS = {0: BATCH}
ROWS_AND_LENGTH = {0: BATCH, 1: LENGTH}


def rows(batch, length):
    """[batch, WIDTH]; the length is not used."""
    return (torch.randn(batch, WIDTH),), {}


def sequences(batch, length):
    return (torch.randn(batch, length, WIDTH),), {}


def images(batch, side):
    return (torch.randn(batch, 3, side, side),), {}
