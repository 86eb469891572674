"""The command `fedmf completion`, which prints the script that completes commands in a shell."""

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

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    completion_script = completion_class(
        ctx.find_root().command, {}, "fedmf", "_FEDMF_COMPLETE"
    ).source()
    # The shell must not add a blank after completing words such as `lstm-size=` and `dirichlet:`,
    # because their value follows at once.
    reply_line = "COMPREPLY+=($value)"
    click.echo(
        completion_script.replace(
            reply_line, f"{reply_line}; [[ $value == *[=:] ]] && compopt -o nospace"
        )
    )
