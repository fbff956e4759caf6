"""Random models: made from a seed alone, evaluated in float64, compared within derived bounds."""
