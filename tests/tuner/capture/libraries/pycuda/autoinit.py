import atexit

from pycuda.driver import Context

atexit.register(Context.pop)
