"""Dense mechanisms (Denisov et al. 2022; multi-epoch paper): the class, its fit and its dual bound."""
