# Continues a text: generate.py LIBCAIRN.SO MODEL TEXT
import ctypes, sys

cairn = ctypes.CDLL(sys.argv[1])
cairn.cairn_last_error.restype = ctypes.c_char_p

class Token(ctypes.Structure):  # the first members of cairn_token
    _fields_ = [("text", ctypes.c_void_p), ("text_size", ctypes.c_size_t)]

@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Token), ctypes.c_void_p)
def show(token, user):
    print(ctypes.string_at(token.contents.text, token.contents.text_size).decode(), end="", flush=True)
    return 1

def check(status):
    if status != 0:
        sys.exit("error: " + cairn.cairn_last_error().decode())

model, session, text = ctypes.c_void_p(), ctypes.c_void_p(), sys.argv[3].encode()
check(cairn.cairn_model_load(sys.argv[2].encode(), None, ctypes.byref(model)))
check(cairn.cairn_session_new(model, None, ctypes.byref(session)))
check(cairn.cairn_session_append_text(session, text, ctypes.c_size_t(len(text))))
check(cairn.cairn_session_generate(session, None, show, None, None))
print()
cairn.cairn_session_free(session)
cairn.cairn_model_free(model)
