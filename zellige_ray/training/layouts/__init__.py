"""State layouts: which ranks hold which part of parameters, gradients, optimizer and EMA between two forward passes.

A layout parts the ranks of an epoch into groups. Each group holds the whole state once, cut evenly over its members:

    replicated   every rank is a group of its own, nothing is gathered
    fsdp         all ranks are one group
    hsdp         the ranks of a node are a group; gradients are then summed across nodes

Everything else follows from that partition, and is written once: `units` gathers a block's parameters before it runs
and sums its gradients into their owners behind it, `replicas` sums across groups, `moving` takes a state from any
partition to any other. A new layout is a function and a line in `layouts`.

Why not torch's `fully_shard`: it works through its communication hooks, and was tried (torch 2.13, gloo). After a
collective that was cancelled in backward the module can't run again (AttributeError inside its hooks), and neither
undoing nor repeating `fully_shard` is offered, so that each death would build the model anew. Its mesh comes from the
process-wide default group, of which an epoch that grows or shrinks has none. It replaces the classes of modules, and
its parameters are cut by rows, with padding. Here a failed step leaves the shards as they were, a new epoch moves
flat intervals, and several ranks may live in one process.

Torch-free, so that a driver can say who holds what.
"""

from __future__ import annotations

from zellige_ray.training.layouts.place import Place, layouts

__all__ = ["Place", "layouts"]
