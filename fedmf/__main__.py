"""`python -m fedmf` is `fedmf`."""

from fedmf.cli import main

if __name__ == "__main__":
    main()
