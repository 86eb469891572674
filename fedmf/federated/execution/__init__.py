"""Client work: in this process, in TFF, on other machines."""
