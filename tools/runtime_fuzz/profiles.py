"""The settings that programs run with: a process for each. Seeds take turns in blocks."""

from __future__ import annotations

import dataclasses

from tools.runtime_fuzz.actions import generate
from tools.runtime_fuzz.program import Program
from torch_mtia.environment import DELAY, DEVICES, LAUNCH_BLOCKING, MEMORY, POISON

BLOCK = 100  # programs


@dataclasses.dataclass(frozen=True)
class Profile:
    name: str
    devices: int
    environment: dict[str, str]

    def program(self, seed: int) -> Program:
        return generate(seed, self.devices)


def _profile(name: str, devices: int, memory: str, **more: str) -> Profile:
    return Profile(name, devices, {DEVICES.name: str(devices), MEMORY.name: memory, **more})


EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
COLLECTED = {"PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.3,max_split_size_mb:20"}

PROFILES = (
    _profile("delay", 2, "512M", **{DELAY.name: "1"}),
    _profile("no delay", 2, "512M"),
    _profile("delay, little memory", 1, "64M", **{DELAY.name: "2"}),
    _profile("delay, expandable segments", 2, "256M", **{DELAY.name: "3"}, **EXPANDABLE),
    _profile("expandable segments", 1, "64M", **EXPANDABLE),
    _profile("delay, collected segments", 1, "128M", **{DELAY.name: "4"}, **COLLECTED),
    _profile("launch blocking", 2, "256M", **{LAUNCH_BLOCKING.name: "1"}),
    _profile("delay, poison", 2, "512M", **{DELAY.name: "5", POISON.name: "1"}),
    _profile("poison, expandable segments", 1, "64M", **{POISON.name: "1"}, **EXPANDABLE),
    _profile("launch blocking, poison", 2, "256M", **{LAUNCH_BLOCKING.name: "1", POISON.name: "1"}),
)


def profile_of(seed: int) -> Profile:
    return PROFILES[seed // BLOCK % len(PROFILES)]
