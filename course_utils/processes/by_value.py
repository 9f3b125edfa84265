"""cloudpickle, as the course uses it: a class in a function takes what its body reads along.

cloudpickle looks for the globals of a function in its bytecode. A class body reads them by LOAD_NAME (an
annotation, a base, a decorator), which it passes over, and the function then fails where it arrives.
"""

from opcode import opmap

import cloudpickle.cloudpickle as cloudpickle

if opmap["LOAD_NAME"] not in cloudpickle.GLOBAL_OPS:
    cloudpickle.GLOBAL_OPS = (*cloudpickle.GLOBAL_OPS, opmap["LOAD_NAME"])

__all__ = ["cloudpickle"]
