#!/usr/bin/env python3
"""Times designs of masked attention in half types on one CUDA device, and checks them against float64 on the CPU.

    attention_designs.py

8 heads of 64, length 4096. The engine's fused kernels (dense mask, causal, each back end), its kernel for packed sequences
(documents), and blocks in batched matrix products (any mask).
"""

import contextlib
import math
import statistics
import traceback

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, SIZE, LENGTH = 8, 64, 4096
flash = torch.ops.aten._flash_attention_forward


def document_lengths(length):
    lengths, start, document = [], 0, 0
    while start < length:
        tokens = min(length - start, 300 + (document * 173) % 401)
        lengths.append(tokens)
        start += tokens
        document += 1
    return lengths


def ids_of(lengths):
    return torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])


def cumulative(lengths, device):
    return torch.tensor([0] + list(torch.tensor(lengths).cumsum(0)), dtype=torch.int32, device=device)


def packed(q, k, v, q_lengths, k_lengths, causal=False, scale=None, left=None, right=None, cum=None):
    """[batch, heads, length, size] with the same segments for all members: batch and heads are the heads of one sequence."""
    b, h, n, d = q.shape
    cu_q, cu_k = cum or (cumulative(q_lengths, q.device), cumulative(k_lengths, q.device))
    x, y, z = (t.reshape(-1, t.shape[2], t.shape[3]).transpose(0, 1) for t in (q, k, v))
    out = flash(x, y, z, cu_q, cu_k, max(q_lengths), max(k_lengths), 0.0, causal, False,
                scale=scale, window_size_left=left, window_size_right=right)[0]
    return out.transpose(0, 1).reshape(b, h, n, d)


class Blocks(torch.autograd.Function):
    """Rows of blocks with the same number of kept blocks (rounded up) are one batched product."""

    @staticmethod
    def groups(table, buckets):
        found = {}
        for i, line in enumerate(table):
            if line:
                n = next(b for b in buckets if b >= len(line))
                found.setdefault(n, []).append((i, line))
        return found

    @staticmethod
    def plan(dense, block):
        rows, columns = dense.shape[0] // block, dense.shape[1] // block
        kept = dense.view(rows, block, columns, block).any(3).any(1).tolist()
        buckets = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
        table = [[c for c in range(columns) if kept[r][c]] for r in range(rows)]
        turned = [[r for r in range(rows) if kept[r][c]] for c in range(columns)]
        blocks = dense.view(rows, block, columns, block).transpose(1, 2)
        def make(table, blocks, transposed):
            made = []
            for n, lines in Blocks.groups(table, buckets).items():
                own = torch.tensor([i for i, _ in lines], device=dense.device)
                other = torch.tensor([line + [0] * (n - len(line)) for _, line in lines], device=dense.device)
                drop = torch.stack([torch.stack([~blocks[(c, i) if transposed else (i, c)] for c in line] +
                                                [torch.ones(block, block, dtype=torch.bool, device=dense.device)] * (n - len(line)))
                                    for i, line in lines])  # [g, n, bq, bk]
                if transposed:
                    drop = drop.reshape(len(lines), n * block, block)
                else:
                    drop = drop.transpose(1, 2).reshape(len(lines), block, n * block)
                made.append((n, own, other, drop.contiguous()))
            return made
        return make(table, blocks, False), make(turned, blocks, True)

    @staticmethod
    def forward(ctx, q, k, v, plan, block, scale):
        b, h, n, d = q.shape
        x, y, z = (t.reshape(b * h, -1, block, d) for t in (q, k, v))
        out = torch.zeros_like(x)
        lse = torch.empty(x.shape[:3], device=q.device)
        for m, own, other, drop in plan[0]:
            g = len(own)
            qg = x[:, own].reshape(-1, block, d)
            kg = y[:, other].reshape(-1, m * block, d)
            vg = z[:, other].reshape(-1, m * block, d)
            s = torch.bmm(qg, kg.transpose(1, 2), out_dtype=torch.float).mul_(scale).view(b * h, g, block, m * block)
            s.masked_fill_(drop, -math.inf)
            l = s.logsumexp(-1, keepdim=True)
            p = s.sub_(l).exp_().to(q.dtype).view(-1, block, m * block)
            out[:, own] = torch.bmm(p, vg).view(b * h, g, block, d)
            lse[:, own] = l.squeeze(-1)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rest = plan, block, scale
        return out.view(q.shape)

    @staticmethod
    def backward(ctx, go):
        q, k, v, out, lse = ctx.saved_tensors
        plan, block, scale = ctx.rest
        b, h, n, d = q.shape
        x, y, z, go, out = (t.reshape(b * h, -1, block, d) for t in (q, k, v, go, out))
        delta = (go.float() * out.float()).sum(-1)
        dq, dk, dv = torch.zeros_like(x), torch.zeros_like(y), torch.zeros_like(z)
        for m, own, other, drop in plan[0]:
            g = len(own)
            qg, gg = x[:, own].reshape(-1, block, d), go[:, own].reshape(-1, block, d)
            kg, vg = y[:, other].reshape(-1, m * block, d), z[:, other].reshape(-1, m * block, d)
            s = torch.bmm(qg, kg.transpose(1, 2), out_dtype=torch.float).mul_(scale).view(b * h, g, block, m * block)
            p = s.sub_(lse[:, own].unsqueeze(-1)).exp_().masked_fill_(drop, 0)
            dp = torch.bmm(gg, vg.transpose(1, 2), out_dtype=torch.float).view(p.shape)
            ds = dp.sub_(delta[:, own].unsqueeze(-1)).mul_(p).to(q.dtype).view(-1, block, m * block)
            dq[:, own] = torch.bmm(ds, kg).mul_(scale).view(b * h, g, block, d)
        for m, own, other, drop in plan[1]:
            g = len(own)
            qg, gg = x[:, other].reshape(-1, m * block, d), go[:, other].reshape(-1, m * block, d)
            kg, vg = y[:, own].reshape(-1, block, d), z[:, own].reshape(-1, block, d)
            s = torch.bmm(qg, kg.transpose(1, 2), out_dtype=torch.float).mul_(scale).view(b * h, g, m * block, block)
            p = s.sub_(lse[:, other].reshape(b * h, g, m * block, 1)).exp_().masked_fill_(drop, 0)
            dv[:, own] = torch.bmm(p.to(q.dtype).view(-1, m * block, block).transpose(1, 2), gg).view(b * h, g, block, d)
            dp = torch.bmm(gg, vg.transpose(1, 2), out_dtype=torch.float).view(p.shape)
            ds = dp.sub_(delta[:, other].reshape(b * h, g, m * block, 1)).mul_(p).to(q.dtype).view(-1, m * block, block)
            dk[:, own] = torch.bmm(ds.transpose(1, 2), qg).mul_(scale).view(b * h, g, block, d)
        return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape), None, None, None


def reference(q, k, v, keep, go, scale=None):
    """float64 on the CPU, queries in parts."""
    x, y, z = (t.detach().cpu().double().requires_grad_() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scale = scale or 1 / math.sqrt(q.shape[3])
    s = (x @ y.repeat_interleave(group, 1).transpose(2, 3) * scale).masked_fill(~keep.cpu(), -math.inf)
    dead = ~keep.cpu().any(-1, keepdim=True)
    p = s.masked_fill(dead, 0).softmax(-1).masked_fill(dead, 0)
    out = p @ z.repeat_interleave(group, 1)
    grads = torch.autograd.grad(out, (x, y, z), go.cpu().double())
    return (out.detach(), *grads)


def results(attend, q, k, v, go):
    x, y, z = (t.detach().requires_grad_() for t in (q, k, v))
    out = attend(x, y, z)
    return (out.detach(), *torch.autograd.grad(out, (x, y, z), go))


def error(got, expected):
    found = []
    for a, b in zip(got, expected):
        a = a.cpu().double()
        found.append("nan" if a.isnan().any() else f"{((a - b).norm() / b.norm().clamp_min(1e-30)).item():.1e}")
    return " ".join(found)


def tensors(b, hq, hk, n, m, d, dtype, transposed=False):
    def make(h, length):
        t = torch.randn(b, length, h, d, device="cuda", dtype=dtype).transpose(1, 2) if transposed else \
            torch.randn(b, h, length, d, device="cuda", dtype=dtype)
        return t
    return make(hq, n), make(hk, m), make(hk, m), make(hq, n)


@contextlib.contextmanager
def attempt(name):
    try:
        yield
    except Exception as reason:  # noqa: BLE001
        print(f"{name}: FAILED {type(reason).__name__}: {str(reason)[:300]}")
        if "-v" in __import__("sys").argv:
            traceback.print_exc()


def check():
    print("relative errors of out, dq, dk, dv against float64")
    for dtype in (torch.bfloat16, torch.float16):
        cases = [("documents", dict(q=[70, 1, 33, 196], k=[70, 1, 33, 196])),
                 ("causal documents", dict(q=[70, 1, 33, 196], k=[70, 1, 33, 196], causal=True)),
                 ("window documents", dict(q=[70, 1, 33, 196], k=[70, 1, 33, 196], left=20, right=0)),
                 ("cross", dict(q=[70, 30, 100], k=[13, 200, 87])),
                 ("cross causal bottom right", dict(q=[70, 30, 100], k=[90, 200, 110], causal=True)),
                 ("no keys for some", dict(q=[70, 30, 100], k=[90, 0, 110])),
                 ("no queries for some", dict(q=[70, 0, 130, 0], k=[90, 17, 83, 10])),
                 ("no queries for some, causal", dict(q=[70, 0, 130, 0], k=[70, 17, 130, 10], causal=True)),
                 ("no keys for some, causal", dict(q=[70, 30, 100], k=[70, 0, 110], causal=True)),
                 ("no keys for some, window", dict(q=[70, 30, 100], k=[70, 0, 110], left=9, right=0))]
        for name, case in cases:
            for b, hq, hk, d, transposed in ((1, 4, 4, 64, False), (2, 4, 2, 32, False), (1, 4, 1, 128, True), (1, 2, 2, 48, True), (1, 2, 2, 256, False)):
                label = f"{name}, {dtype}, {b}x{hq}/{hk}x{d} {transposed}"
                with attempt(label):
                    n, m = sum(case["q"]), sum(case["k"])
                    q, k, v, go = tensors(b, hq, hk, n, m, d, dtype, transposed)
                    keep = torch.zeros(n, m, dtype=torch.bool)
                    i = j = 0
                    for a, c in zip(case["q"], case["k"]):
                        rows, columns = torch.arange(a)[:, None] + (c - a), torch.arange(c)
                        part = torch.ones(a, c, dtype=torch.bool)
                        if case.get("causal") or case.get("right") == 0:
                            part &= columns <= rows
                        if case.get("left") is not None:
                            part &= columns >= rows - case["left"]
                        keep[i:i + a, j:j + c] = part
                        i, j = i + a, j + c
                    attend = lambda x, y, z: packed(x, y, z, case["q"], case["k"], case.get("causal", False), 0.2, case.get("left"), case.get("right"))
                    print(f"  {label}: {error(results(attend, q, k, v, go), reference(q, k, v, keep, go, 0.2))}")
        n = 1024
        q, k, v, go = tensors(1, 2, 2, n, n, 64, dtype)
        position = torch.arange(n, device="cuda")
        keep = ((position[:, None] // 16 + position // 16) % 3 == 0) & (position[:, None] // 300 >= position // 300)
        with attempt("blocks"):
            plan = Blocks.plan(keep, 128)
            attend = lambda x, y, z: Blocks.apply(x, y, z, plan, 128, 0.125)
            print(f"  blocks, {dtype}: {error(results(attend, q, k, v, go), reference(q, k, v, keep, go))}")


def milliseconds(call, repeats=20):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(5):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(repeats):
            call()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / repeats)
    return statistics.median(times)


def graphed(call):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def time_all():
    q, k, v, go = tensors(1, HEADS, HEADS, LENGTH, LENGTH, SIZE, torch.bfloat16)
    lengths = document_lengths(LENGTH)
    ids = ids_of(lengths).cuda()
    documents = ids[:, None] == ids
    position = torch.arange(LENGTH, device="cuda")
    causal = position[:, None] >= position
    scattered = ((position[:, None] // 128 + position // 128) % 3 == 0) & ((position[:, None] + position) % 5 != 0)
    cum = (cumulative(lengths, "cuda"), cumulative(lengths, "cuda"))
    rows = {}

    def row(name, attend):
        def forward():
            with torch.no_grad():
                attend(q, k, v)
        def both():
            results(attend, q, k, v, go)
        with attempt(name):
            graph = float("nan")
            f, fb = milliseconds(forward), milliseconds(both)
            with attempt(name + ", graph"):
                graph = milliseconds(graphed(both))
            rows[name] = fb
            print(f"  {name:44} {f:8.3f} {fb:8.3f} {graph:8.3f}", flush=True)

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print(f"  {'milliseconds':44}  forward     both  as graph")
    backends = {"default": None, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
                "cudnn": SDPBackend.CUDNN_ATTENTION}
    for name, backend in backends.items():
        with contextlib.nullcontext() if backend is None else sdpa_kernel(backend):
            row(f"causal, {name}", lambda x, y, z: F.scaled_dot_product_attention(x, y, z, is_causal=True))
            row(f"dense documents, {name}", lambda x, y, z: F.scaled_dot_product_attention(x, y, z, attn_mask=documents))
            row(f"dense scattered, {name}", lambda x, y, z: F.scaled_dot_product_attention(x, y, z, attn_mask=scattered))
    row("packed causal", lambda x, y, z: packed(x, y, z, [LENGTH], [LENGTH], True, cum=(cumulative([LENGTH], "cuda"),) * 2)
        if False else packed(x, y, z, [LENGTH], [LENGTH], True, cum=whole))
    row("packed documents", lambda x, y, z: packed(x, y, z, lengths, lengths, cum=cum))
    row("packed causal documents", lambda x, y, z: packed(x, y, z, lengths, lengths, True, cum=cum))
    row("packed window 512", lambda x, y, z: packed(x, y, z, [LENGTH], [LENGTH], False, left=512, right=0, cum=whole))
    for name, keep in (("documents", documents), ("causal", causal), ("scattered", scattered)):
        for block in (64, 128):
            with attempt(f"blocks of {block}, {name}"):
                plan = Blocks.plan(keep, block)
                row(f"blocks of {block}, {name}", lambda x, y, z: Blocks.apply(x, y, z, plan, block, SIZE**-0.5))
    for name in ("packed documents", "blocks of 128, documents", "blocks of 64, documents"):
        if name in rows and "dense documents, default" in rows:
            print(f"{name} / dense documents, default: {rows[name] / rows['dense documents, default']:.3f} (goal 0.5)")
    print("the same twice, bit for bit (out, dq, dk, dv):")
    for mode in (False, True):
        torch.use_deterministic_algorithms(mode, warn_only=True)
        for name, attend in (("packed documents", lambda x, y, z: packed(x, y, z, lengths, lengths, cum=cum)),
                             ("causal, default", lambda x, y, z: F.scaled_dot_product_attention(x, y, z, is_causal=True))):
            with attempt(name):
                a, b = results(attend, q, k, v, go), results(attend, q, k, v, go)
                print(f"  {name}, deterministic algorithms {mode}: {[torch.equal(s, t) for s, t in zip(a, b)]}")
    torch.use_deterministic_algorithms(False)


if __name__ == "__main__":
    torch.manual_seed(0)
    whole = (torch.tensor([0, LENGTH], dtype=torch.int32, device="cuda"),) * 2
    time_all()
    check()
    print("done")
