"""Cases of torch.distributed.pipelining.microbatch: random trees with specs, misuse among them."""

import torch
from torch.distributed.pipelining import microbatch
from torch.distributed.pipelining.microbatch import TensorChunkSpec, merge_chunks, split_args_kwargs_into_chunks, sum_reducer
from torch.nn.attention.flex_attention import BlockMask

import mask_recipes

SPLIT_CASES = 200
MERGE_CASES = 100
DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]


class Masked:
    """Switches PyTorch's masked-debug mode."""

    def __init__(self, on):
        self.on = on

    def __enter__(self):
        microbatch._debug_mask_minibatches = self.on

    def __exit__(self, *_):
        microbatch._debug_mask_minibatches = False


def random_tensor(rng, shape):
    return (torch.randn(shape) * 4).to(rng.choice(DTYPES))


def random_leaf(rng, batch, misuse):
    """A value and its spec."""
    roll = rng.random()
    if misuse and roll < 0.1:
        return rng.choice([(torch.randn(3), None), (7, TensorChunkSpec(0)), (torch.randn(2, 2), TensorChunkSpec(4)),
                           (torch.tensor(1.0), TensorChunkSpec(0)), ("x", None)])
    if roll < 0.15:
        return None, microbatch._Replicate()
    if roll < 0.25:
        return rng.choice([3, 2.5, "text", True]), microbatch._Replicate()
    if roll < 0.35:
        return random_tensor(rng, [rng.randint(1, 4) for _ in range(rng.randint(0, 3))]), microbatch._Replicate()
    if roll < 0.45:
        recipe = mask_recipes.random_recipe(rng, batch=rng.choice([1, batch]))
        mask = mask_recipes.build(recipe)
        mask.recipe = recipe
        return mask, TensorChunkSpec(0)
    dims = rng.randint(1, 3)
    dim = rng.randrange(-dims, dims)
    shape = [rng.randint(1, 4) for _ in range(dims)]
    shape[dim] = batch
    return random_tensor(rng, shape), TensorChunkSpec(dim)


def random_tree(rng, batch, depth, misuse):
    kind = rng.choice(["leaf", "tuple", "list", "dict"]) if depth > 0 else "leaf"
    if kind == "leaf":
        return random_leaf(rng, batch, misuse)
    pairs = [random_tree(rng, batch, depth - 1, misuse) for _ in range(rng.randint(1, 3))]
    values, specs = [value for value, _ in pairs], [spec for _, spec in pairs]
    if kind == "tuple":
        return tuple(values), tuple(specs)
    if kind == "list":
        return values, specs
    keys = rng.sample(["ids", "mask", "x y", "hidden", 'q"'], len(values))
    return dict(zip(keys, values)), dict(zip(keys, specs))


def spec_text(spec):
    """The text in which the C++ side reads a spec."""
    if isinstance(spec, tuple):
        return "(" + ", ".join(map(spec_text, spec)) + (",)" if len(spec) == 1 else ")")
    if isinstance(spec, list):
        return "[" + ", ".join(map(spec_text, spec)) + "]"
    if isinstance(spec, dict):
        quoted = lambda key: '"' + key.replace('"', '\\"') + '"'
        return "{" + ", ".join(f"{quoted(key)}: {spec_text(value)}" for key, value in spec.items()) + "}"
    if isinstance(spec, microbatch._Replicate):
        return "Replicate"
    if isinstance(spec, microbatch._LossReducer):
        return "LossReducer"
    return str(spec)


def writable(tree):
    """The tree with block masks replaced by what the C++ side can compare."""
    if isinstance(tree, tuple):
        return tuple(writable(value) for value in tree)
    if isinstance(tree, list):
        return [writable(value) for value in tree]
    if isinstance(tree, dict):
        return {key: writable(value) for key, value in tree.items()}
    if isinstance(tree, BlockMask):
        return {"__block_mask__": {"recipe": getattr(tree, "recipe", None), "tensors": mask_recipes.tensors(tree)}}
    # Its own storage: a view would be written with the whole of what it is a view of.
    return tree.detach().clone(memory_format=torch.preserve_format) if isinstance(tree, torch.Tensor) else tree


def split_cases(rng):
    for number in range(SPLIT_CASES):
        misuse = number % 5 == 4
        batch = rng.randint(1, 9)
        args, args_spec = [], []
        for _ in range(rng.randint(0, 3)):
            value, spec = random_tree(rng, batch, 3, misuse)
            args.append(value)
            args_spec.append(spec)
        kwargs, kwargs_spec = {}, {}
        for name in rng.sample(["mask", "ids", "scale"], rng.randint(0, 2)):
            kwargs[name], kwargs_spec[name] = random_tree(rng, rng.choice([batch, batch + 1]), 2, misuse)
        args, args_spec = tuple(args), tuple(args_spec)
        default = rng.random() < 0.2
        chunks = rng.randint(1, 6)
        masked = rng.random() < 0.15
        case = {
            "args": writable(args), "kwargs": writable(kwargs), "chunks": chunks, "masked": masked,
            "args_spec": None if default else spec_text(args_spec),
            "kwargs_spec": None if default else spec_text(kwargs_spec),
        }
        try:
            with Masked(masked):
                out = split_args_kwargs_into_chunks(args, kwargs, chunks, None if default else args_spec,
                                                    None if default else kwargs_spec)
            case["out_args"], case["out_kwargs"] = writable(list(out[0])), writable(list(out[1]))
            case["raises"] = None
        except (AssertionError, ValueError, RuntimeError, IndexError) as error:
            case["raises"] = type(error).__name__
        yield case


def random_merge(rng, with_spec):
    """Chunks, their spec and whether they are masked."""
    if not with_spec:  # tensors only, along the batch
        shape = [rng.randint(1, 3) for _ in range(rng.randint(0, 2))]
        return [{"y": torch.randn(rng.randint(1, 3), *shape), "z": [torch.ones(2)]} for _ in range(3)], None, False
    tree, spec = random_tree(rng, rng.randint(2, 9), 3, False)
    masked = rng.random() < 0.2
    with Masked(masked):
        parts, _ = split_args_kwargs_into_chunks((tree,), None, rng.randint(1, 5), (spec,))
    parts = [part[0] for part in parts]
    if rng.random() < 0.5:
        parts, spec = [(part, torch.randn([])) for part in parts], (spec, sum_reducer)
    return parts, spec, masked


def merge_cases(rng):
    done = 0
    while done < MERGE_CASES:
        parts, spec, masked = random_merge(rng, with_spec=done % 10 != 9)
        try:
            with Masked(masked):
                merged = merge_chunks(parts, spec)
        except (AttributeError, TypeError, RuntimeError):
            continue  # it cannot merge block masks, nor compare replicated tensors of several elements
        done += 1
        yield {"chunks": writable(parts), "spec": None if spec is None else spec_text(spec), "masked": masked,
               "merged": writable(merged)}
