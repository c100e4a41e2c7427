"""What ``spacy train`` calls beside the pipeline. Importing it is cheap."""
