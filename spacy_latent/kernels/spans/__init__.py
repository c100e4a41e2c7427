"""Recurrences over spans: projective dependency trees and constituency trees."""
