"""Stages compiled ahead of time by Inductor, for C++ programs: `python -m stagecraft.compile --help`.

    see_through         operators that exist in Python only
    graph_text, sizes   the text of a stage's graph
    stage_module        the graph as a module of ATen calls; draws: its random operators, by seeds
    operators           operators of ours that programs call
    joint               trace of forward and backward, Inductor's passes
    hoist               what depends on weights alone
    halves              forward and backward; the backward in halves
    tensors_only        sizes are read off tensors
    programs            the programs of a stage, and what their inputs and outputs are
    build               compile them, here or in processes; trial: run each once
    workers, worker     the processes
    cache, package      what is kept on disk; instructions: of the processor that compiled it
    private             every interface of torch that is not public
"""
