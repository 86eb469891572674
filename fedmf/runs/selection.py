"""Names of the files of a private selection, by which a run knows that it is one of its trials."""

import pathlib

# Folder of the selected trial's run, in the folder of a private selection. During the selection
# each trial has a folder of this name, so that no file of a trial has another name in it.
SELECTED = "selected"
# File of the procedure, in the folder of a private selection.
SELECTION = "selection.json"
# File of the draw, in private/. It is there from before the first trial to the end.
DRAW = "draw.json"


def is_trial(folder: pathlib.Path) -> bool:
    """Returns whether a run's folder is that of a trial of a private selection under way."""
    # The folder is private/runs/TRIAL/selected.
    parents = folder.absolute().parents
    return folder.name == SELECTED and len(parents) > 2 and (parents[2] / DRAW).is_file()
