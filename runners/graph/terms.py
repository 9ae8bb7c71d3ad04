def terms(proto, inputs, outputs, *, inside=0): return max(1, inside)
