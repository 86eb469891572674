"""fedmf completion: what a shell needs to complete fedmf's commands, options and their choices."""

import click

from fedmf.cli.errors import Command

SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes fedmf on Tab.

    \b
    Example:
      fedmf completion bash >> ~/.bashrc
      fedmf completion zsh >> ~/.zshrc
      fedmf completion fish > ~/.config/fish/completions/fedmf.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "fedmf", "_FEDMF_COMPLETE").source()
    # Behind lstm-size= and dirichlet: a value follows, and no blank.
    words = "COMPREPLY+=($value)"
    click.echo(script.replace(words, f"{words}; [[ $value == *[=:] ]] && compopt -o nospace"))
