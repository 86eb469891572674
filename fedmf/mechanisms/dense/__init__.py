"""Dense mechanisms (Denisov et al. 2022; multi-epoch paper): class, fit and dual bound."""
