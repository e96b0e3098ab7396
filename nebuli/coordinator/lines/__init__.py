"""Lines: how a coordinator and the members of its circuit reach each other, over channels."""
