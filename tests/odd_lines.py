"""Lines of a CSV file with columns x, z, age, color and target, on which readers of whole blocks fail."""

BAD_LINES = {
    "extra fields": b"1,1,50,red,1,9,9",
    "one extra field": b"1,1,50,red,1,",
    "a field less": b"1,1,50,red",
    "open quote": b'1,1,50,"red,1',
    "open quote at the end": b'1,1,50,red,"1',
    "text after a quote": b'1,1,50,"re"d,1',
    "carriage return": b"1,1,50,re\rd,1",
    "long text": b"1,1,50," + b"x" * 200_000 + b",1",
}
ODD_LINES = {
    "not UTF-8": b"1,1,50,\xff\xfe,1",
    "cut UTF-8": b"1,1,50,red,1\xe2",
    "null byte": b"1,1,50,\0,1",
    "text for a number": b"one,?,50,red,1",
    "huge number": b"1" + b"0" * 400 + b",-99999999999999999999,50,red,1",
    "quoted comma": b'1,1,50,"red, or green",1',
    "a quote inside": b'1,1,50,re"d,1',
    "other line ends": "1,1,50,re\u2028d\x0b\x85,1".encode(),
}
