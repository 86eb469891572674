"""BLT mechanisms (BLT slides): the class and its fit."""
