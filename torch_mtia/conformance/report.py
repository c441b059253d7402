from pathlib import Path
from torch_mtia.conformance.results import Run
def save_html(run: Run, path: Path, old: Run | None) -> None:
    pass
