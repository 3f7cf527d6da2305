"""From a case, which is data, to torch modules and tensors."""
