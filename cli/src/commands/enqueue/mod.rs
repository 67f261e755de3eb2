mod ranges;
