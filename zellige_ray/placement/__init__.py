"""Placement: where every token and every tile of attention of a batch goes. Pure: no torch, no ray, no clock."""

from zellige_ray.placement.bound import lower_bound_s
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.hardware import HardwareProfile, load_hardware
from zellige_ray.placement.model import ModelPreset, load_model
from zellige_ray.placement.plan import Plan, Prediction, RankLoad, Round, Shard, Tile, plan_from_json, plan_to_json
from zellige_ray.placement.planner import make_plan
from zellige_ray.placement.policies import Policy, get_policy, policies
from zellige_ray.placement.sequence import Sequence
from zellige_ray.placement.timeline import simulate
from zellige_ray.placement.validation import validate

__all__ = [
    "Cluster",
    "CostModel",
    "HardwareProfile",
    "ModelPreset",
    "Plan",
    "Policy",
    "Prediction",
    "RankLoad",
    "Round",
    "Sequence",
    "Shard",
    "Tile",
    "get_policy",
    "load_hardware",
    "load_model",
    "lower_bound_s",
    "make_plan",
    "plan_from_json",
    "plan_to_json",
    "policies",
    "simulate",
    "validate",
]
