"""Traffic: the (token, head) rows that the shards and tiles of a round put on the wire."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from zellige_ray.placement.plan import FloatArray, IntArray, Round

PAIRS_AT_ONCE = 4_000_000  # limits the memory of the pairwise expansion


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Rows sent and received. Ways: 0 in (q, k, v to the tiles), 1 out (outputs home). Spans: 0 in the node, 1 across.

    sent_WSR, received_WSR: rows per way, span and rank. peers_R: ranks that a rank talks to. cut_S: is the sequence on
    more than one rank. first_S: its first rank. links_L2: pairs (first rank, other rank) that some sequence joins.
    """

    sent_WSR: FloatArray
    received_WSR: FloatArray
    peers_R: IntArray
    cut_S: np.ndarray
    first_S: IntArray
    links_L2: IntArray


def measure_traffic(round_: Round, node_of_rank: IntArray, head_group: int) -> Traffic:
    """Traffic of a round; keys and values travel once per rank and (key) head, whatever the number of its tiles."""
    size, num = len(node_of_rank), len(round_.ids)
    shards, tiles = round_.shards_K4, round_.tiles_M6
    first_S = np.zeros(num, dtype=np.int64)
    first_S[shards[::-1, 0]] = shards[::-1, 1]
    cut_S = np.zeros(num, dtype=bool)
    cut_S[shards[shards[:, 1] != first_S[shards[:, 0]], 0]] = True
    cut_S[tiles[tiles[:, 1] != first_S[tiles[:, 0]], 0]] = True
    flows, peers = np.zeros((2, 2, 2, size)), np.zeros(size, dtype=np.int64)
    if not cut_S.any():
        return Traffic(flows[0], flows[1], peers, cut_S, first_S, np.zeros((0, 2), dtype=np.int64))
    shards, tiles = shards[cut_S[shards[:, 0]]], tiles[cut_S[tiles[:, 0]]]
    held = np.unique(np.concatenate([first_S[x[:, 0]] * size + x[:, 1] for x in (shards, tiles)]))
    fresh_M = fresh_heads(tiles, head_group)
    met = [_flow(shards[a:b], tiles, fresh_M, node_of_rank, flows) for a, b in _portions(shards, tiles, num)]
    pair = np.unique(np.concatenate(met))
    peers = np.bincount(pair // size, minlength=size) + np.bincount(pair % size, minlength=size)
    return Traffic(flows[0], flows[1], peers, cut_S, first_S, np.stack([held // size, held % size], axis=1))


def fresh_heads(tiles_M6: IntArray, head_group: int) -> IntArray:
    """Key heads that each tile adds to those its rank already got for the sequence; tiles are sorted."""
    start = tiles_M6[:, 2] // head_group
    stop = -(-tiles_M6[:, 3] // head_group)
    new = np.ones(len(tiles_M6), dtype=bool)
    new[1:] = (tiles_M6[1:, :2] != tiles_M6[:-1, :2]).any(axis=1)
    lift = np.cumsum(new) * (int(stop.max()) + 1)  # groups never overlap after the lift
    reached = np.maximum.accumulate(stop + lift)
    before = np.concatenate([[0], reached[:-1]])
    return np.asarray(np.maximum(stop + lift - np.maximum(start + lift, before), 0), dtype=np.int64)


def _portions(shards: IntArray, tiles: IntArray, num: int) -> list[tuple[int, int]]:
    """Ranges of shards whose pairs with the tiles of their sequences fit in memory."""
    pairs = np.cumsum(np.bincount(tiles[:, 0], minlength=num)[shards[:, 0]])
    cuts = [0]
    while cuts[-1] < len(shards):
        done = pairs[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(pairs, done + PAIRS_AT_ONCE, side="right"))))
    return list(itertools.pairwise(cuts))


def _flow(shards: IntArray, tiles: IntArray, fresh_M: IntArray, node: IntArray, flows: FloatArray) -> IntArray:
    """Adds the rows between these shards and all tiles of their sequences to flows; returns the pairs that meet."""
    size = len(node)
    begin = np.searchsorted(tiles[:, 0], shards[:, 0], side="left")
    count = np.searchsorted(tiles[:, 0], shards[:, 0], side="right") - begin
    s = np.repeat(np.arange(len(shards)), count)
    t = np.arange(len(s)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(begin, count)
    home, rank = shards[s, 1], tiles[t, 1]
    away = home != rank
    s, t, home, rank = s[away], t[away], home[away], rank[away]
    queries = np.minimum(shards[s, 3], tiles[t, 5]) - np.maximum(shards[s, 2], tiles[t, 4])
    q = np.maximum(queries, 0) * (tiles[t, 3] - tiles[t, 2])
    kv = 2 * (shards[s, 3] - shards[s, 2]) * fresh_M[t]
    span = (node[home] != node[rank]) * size
    for way, a, b, rows in ((0, home, rank, q + kv), (1, rank, home, q)):
        flows[0, way] += np.bincount(span + a, weights=rows, minlength=2 * size).reshape(2, size)
        flows[1, way] += np.bincount(span + b, weights=rows, minlength=2 * size).reshape(2, size)
    meet = (q + kv) > 0
    return np.unique(np.minimum(home, rank)[meet] * size + np.maximum(home, rank)[meet])
