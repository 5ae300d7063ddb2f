"""linear's variants on the tensor cores of compute capability 9.0: gemm's, with the layer's epilogue."""

from __future__ import annotations

from tilewright.kernels.gemm.streamed_half_sm90_space import STREAMED_HALF_SM90
from tilewright.kernels.gemm.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.gemm.tensor_half_packed_sm90_space import TENSOR_HALF_PACKED_SM90
from tilewright.kernels.gemm.tensor_half_sm90_space import TENSOR_HALF_SM90
from tilewright.kernels.gemm.tensor_half_turned_sm90_space import TENSOR_HALF_TURNED_SM90
from tilewright.kernels.gemm.tensor_sm90_space import TENSOR1XTF32_SM90, TENSOR3XTF32_SM90
from tilewright.kernels.linear.tensor_variants import fused

LINEAR_TENSOR3XTF32_SM90 = fused(
    TENSOR3XTF32_SM90, "FP32 accuracy by Hopper's wgmma, bias and activation applied in registers."
)
LINEAR_TENSOR3XFP16_SM90 = fused(
    TENSOR3XFP16_SM90, "FP32 accuracy by FP16 parts on Hopper's wgmma, X and W packed first; bias and activation fused."
)
LINEAR_TENSOR1XTF32_SM90 = fused(
    TENSOR1XTF32_SM90, "TF32 products by Hopper's wgmma, bias and activation applied in registers."
)
LINEAR_TENSOR_HALF_SM90 = fused(
    TENSOR_HALF_SM90, "bfloat16 and float16 by Hopper's wgmma and tensor maps; bias and activation in registers."
)
LINEAR_TENSOR_HALF_PACKED_SM90 = fused(
    TENSOR_HALF_PACKED_SM90, "bfloat16 and float16 by Hopper's wgmma, X and W packed first; bias and activation fused."
)
LINEAR_TENSOR_HALF_TURNED_SM90 = fused(
    TENSOR_HALF_TURNED_SM90,
    "bfloat16 and float16 on Hopper, the product turned: tiles suit any number of rows; bias and activation fused.",
)
LINEAR_STREAMED_HALF_SM90 = fused(
    STREAMED_HALF_SM90, "bfloat16 and float16 for few rows of X: W is read once, by TMA; bias and activation fused."
)
