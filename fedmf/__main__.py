"""Entry point of `python -m fedmf`, which runs the same command-line interface as `fedmf`."""

from fedmf.cli import main

if __name__ == "__main__":
    main()
