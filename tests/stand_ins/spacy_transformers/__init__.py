"""In the place of spacy-transformers in programs that tests start.

spaCy imports every factory that is installed when it makes its first pipeline. The import of
spacy-transformers takes 4.5 seconds of a core, and few programs use it.
"""
