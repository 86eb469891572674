"""Low-rank mechanisms (Denisov et al. 2022, App. H): the class and its fit."""
