"""Native kernels for the CPU: packed products, paged attention, decoders like Llama."""
