"""The run folder: the name of every file that a run leaves behind."""

from __future__ import annotations

CONFIG = "config.yaml"  # the resolved configuration
LEDGER = "ledger.jsonl"  # one line per committed step, with its sample ids
METRICS = "metrics.jsonl"  # one line per event, with its time
HARDWARE = "hardware.yaml"  # the rates that plans were made with, as `zellige plan --hardware` reads them
MEMORY = "memory.json"  # the memory model that plans are made with, where it was weighed
MODEL = "model.yaml"  # the model as the planner sees it, as `zellige plan --model` reads it
MEMBERS = "members.json"  # who is alive now: epoch, workers, nodes, process ids
PAGE = "page.json"  # where the live page of the running driver is
PLANS = "plans"  # step-000012.json: the plans of the last 50 steps
CHECKPOINTS = "checkpoints"
PREVIEWS = "previews"
ENVIRONMENT = "environment.json"  # versions and hardware
SUMMARY = "summary.json"
REPORT = "report.html"
