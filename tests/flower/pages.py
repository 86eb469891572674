"""The snippets of docs/flower.md, and the app that they make up."""

import pathlib
import re

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "flower.md").read_text()


def snippets(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def app(**numbers):
    """Returns the page's app.py, with other numbers of the plan and the strategy."""
    client, server, run, _ = snippets("python")
    text = "\n".join([client, server, run])
    for name, value in {"noise_seed": 17, **numbers}.items():
        text, num_replaced = re.subn(rf"\b{name}=[^,)\n]+", f"{name}={value}", text)
        assert num_replaced == 1, name
    return text


def torch_app():
    """Returns the page's app.py with the client that trains a PyTorch model."""
    client, *other_snippets = snippets("python")
    numpy_model = 'ArrayRecord({"weights": Array(np.zeros(10, np.float32))})'
    text = app(folder="None").replace(client, other_snippets[-1])
    assert numpy_model in text
    text = text.replace(numpy_model, "ArrayRecord(build_model().state_dict())")
    return text.replace('result.arrays["weights"].numpy()', "result.arrays.keys()")


def module(text):
    names = {"__name__": "app"}
    exec(compile(text, "docs/flower.md", "exec"), names)
    return names
