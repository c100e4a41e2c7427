"""A stand-in for spacy-transformers in the programs that tests start.

spaCy imports all installed factories when it creates its first pipeline. The import of
spacy-transformers takes 4.5 processor seconds, and few programs use it.
"""
