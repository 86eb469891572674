"""Each public name says what it takes, gives and raises."""

import inspect

import fedmf

NAMES = {name: getattr(fedmf, name) for name in fedmf.__all__}
# Names whose docstring lacks a section today: add it and delete the name here.
INCOMPLETE = {
    "CyclicFixedSize",
    "CyclicPoisson",
    "PlanConfig",
    "TrainConfig",
    "audit_run",
    "calibrate",
    "choose_bands",
    "effective_rmse",
    "predicted_learning_rate",
    "statement",
}


def lacking(thing):
    """The sections that a docstring should have and has not."""
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing):
        sections = [] if issubclass(thing, Warning) else ["Attributes:", "Args:"]
        return [] if not sections or any(section in text for section in sections) else sections
    signature = inspect.signature(thing)
    sections = ["Raises:"]
    if signature.parameters:
        sections.append("Args:")
    if signature.return_annotation not in (None, "None"):
        sections.append("Returns:")
    return [section for section in sections if section not in text]


def test_it_says_what_it_takes_gives_and_raises():
    assert {name for name, thing in NAMES.items() if lacking(thing)} == INCOMPLETE


def test_a_docstring_without_sections_is_seen():
    def silent(x: int) -> int:
        """Gives x."""
        return x

    class Silent:
        """Has x."""

    assert lacking(silent) == ["Raises:", "Args:", "Returns:"]
    assert lacking(Silent)
