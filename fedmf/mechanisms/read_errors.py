"""What numpy and zipfile raise when they read a damaged .npy or .npz file."""

import tokenize
import zipfile
import zlib

READ_ERRORS = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    TypeError,
    MemoryError,
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # an archive that seems encrypted
    SyntaxError,  # a header of .npy that is no Python literal
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
