"""pytest -p torch_mtia.sanitizer.pytest_plugin --sanitize-device CHECKS: tests fail in which something is found."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from torch_mtia import sanitizer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sanitize-device",
        metavar="CHECKS",
        help="let tests fail in which torch_mtia's sanitizer finds something: a list, separated by commas, of "
        f"{', '.join(sanitizer.CHECKS)}",
    )


def pytest_configure(config: pytest.Config) -> None:
    checks = config.getoption("--sanitize-device")
    if checks:
        try:
            sanitizer.start(*checks.split(","))
        except ValueError as error:
            raise pytest.UsageError(f"--sanitize-device: {error}") from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    if not item.config.getoption("--sanitize-device"):
        return (yield)
    sanitizer.reports().clear()
    result = yield
    if found := sanitizer.reports():
        pytest.fail("\n\n".join(map(str, found)), pytrace=False)
    return result
