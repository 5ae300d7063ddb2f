"""Arrays of packages that we do not know: each offers one protocol and nothing else."""


class OnlyInterface:
    """Offers CUDA's array interface."""

    def __init__(self, tensor):
        self.__tensor = tensor

    @property
    def __cuda_array_interface__(self):
        return self.__tensor.__cuda_array_interface__


class OnlyDlpack:
    """Offers DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **words):
        return self.array.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
