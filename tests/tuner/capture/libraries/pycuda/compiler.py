from pycuda.driver import Error, Module


class SourceModule:
    def __init__(self, source, nvcc="nvcc", options=None, **others):
        self.module = Module()

    def get_function(self, name):
        return self.module.get_function(name)

    def get_global(self, name):
        raise Error("not found")
