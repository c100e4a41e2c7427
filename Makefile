.PHONY: test
test:
	python -m pytest

.PHONY: spacy-suite
spacy-suite:
	python -m tests.spacy_suite
