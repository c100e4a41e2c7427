.PHONY: test
test:
	python -m pytest
