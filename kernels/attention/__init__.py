"""attention: softmax(Q Kᵀ scale + mask) V, head by head, without the scores in memory."""
