"""Extensions that ``spacy train`` calls; importing this module is cheap."""
